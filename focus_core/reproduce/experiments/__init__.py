"""The published tables and figures: functions that list and measure the cells of each."""
