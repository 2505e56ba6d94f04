"""The ``softnce`` command: one module per subcommand, imported only when it is called."""
