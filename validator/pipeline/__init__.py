"""What joins everything below: a validation from its runbook to its report, and what is done with run folders.

`validate` executes and resumes, with `session` for the effects of a runner and `phases` for one phase after another;
`evaluate` judges records, `write` writes reports. Other commands have a module each: `share`, `inspect` (with
`compare`), `baseline`, `doctor`.
"""
