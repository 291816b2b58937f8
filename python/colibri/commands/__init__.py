"""The subcommands of ``colibri``; each module has a ``run(args)`` that returns the exit code."""
