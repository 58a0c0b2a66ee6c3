"""The execution of tasks on the workers of a Dask cluster. No other package imports `distributed`."""
