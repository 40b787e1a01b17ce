"""The command line: the `tidegate` command and its subcommands.

Start reading at `main`, which declares the commands with their options. `scripts` reads, checks and
explains SQL files without Spark. `run` and `shell` (`tidegate sql`) run them in a session; `run`
also serves metrics and the console. `directory` has the commands for data directories:
`checkpoints`, `inspect`, `query` and `prune`. `init` writes files: new projects and the archive for
clusters.

Output goes through a screen: `screen` has those for pipes and logs, `live` the one for terminals,
and `text` formats values and rows. `errors` prints errors and determines the exit code.

`main` imports the other modules when a command needs them, so that `check` and `explain` start fast
and load neither pyspark nor prompt_toolkit. The package may import everything but pyspark.
"""
