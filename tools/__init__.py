"""What developers run: house rules, locks, the public face, error codes. Needs nothing but the standard library."""
