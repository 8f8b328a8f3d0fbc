"""The `forebay` command. The only package that may import both programs, and only inside the command that needs it."""
