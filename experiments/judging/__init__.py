"""How well pairs are judged: cross-fitting, audits, intervals."""
