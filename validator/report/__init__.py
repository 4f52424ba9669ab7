"""What people see of a validation: HTML, Markdown, JUnit, a file of settings, and the terminal.

`html`, `markdown` and `exports` make the renderings of a `ValidationReport`, which the pipeline writes;
`charts.record_charts` says what is drawn; `terminal` shows progress and the summary. Nothing here judges: every number
comes from the report.
"""
