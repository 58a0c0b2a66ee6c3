"""Errands done by the workers of a Dask cluster; nothing else imports `distributed`."""
