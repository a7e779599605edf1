"""The steps by which a database gets from one version of the tables to the next."""
