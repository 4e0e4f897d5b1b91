"""Files and stores: how each is read and checked, written whole, locked, and found again after an interruption."""
