"""Quality of judgements: cross-fitting, audits, intervals."""
