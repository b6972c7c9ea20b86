"""The report: counts and nines, the page with its plots, and the tables of all audits."""
