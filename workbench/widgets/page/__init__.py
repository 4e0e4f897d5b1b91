"""Small parts of a page that show no data."""
