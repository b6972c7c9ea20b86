"""How the steps of the audit are run: in this process, or by Spark."""
