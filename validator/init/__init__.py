"""A first runbook for any trainer: its command is understood, watched for a short while, and written down."""
