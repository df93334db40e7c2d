"""Parts of pages that are generated: tables of results and of fields."""
