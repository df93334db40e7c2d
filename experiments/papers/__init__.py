"""Commands that make the tables and figures of the papers, and runs for them."""
