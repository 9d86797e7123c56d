"""The contract in executable form: every promise of the stores in plain dictionaries, made to be read."""
