"""PostgreSQL: the same tables and promises, for any number of workers. Needs the extra `postgres`."""
