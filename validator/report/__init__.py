"""What people see of a validation: HTML, Markdown, JUnit, a file of settings, and the terminal.

`write.write_all` writes the renderings of a `ValidationReport` into the run folder; `view.record_charts` gives it what
is drawn; `terminal` shows progress and the summary. Nothing here judges: every number comes from the report.
"""
