"""A database backend whose database is the current tenant's."""
