"""Between the API and an engine: the App's store connection, merged enqueues, waiting for jobs to end."""
