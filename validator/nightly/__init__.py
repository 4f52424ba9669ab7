"""Validations on a schedule: a runbook that a timer starts, with a log, notifications, retention and metrics.

`schedule` puts a job into systemd or cron, `job` is what either of them starts.
"""
