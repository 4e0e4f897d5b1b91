"""What every benchmark measures with: seconds, and memory."""
