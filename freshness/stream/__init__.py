"""The vocabulary of an update stream: transactions, heartbeats, and the text from which a reader resumes."""
