"""Parts of pages that several pages draw."""
