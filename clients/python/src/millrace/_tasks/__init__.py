"""Tasks as users make them: functions, arguments, options, graphs, actors and scattered data."""
