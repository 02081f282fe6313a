"""The operator's command line. It may start any other package, so it imports them lazily."""
