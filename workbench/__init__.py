"""The Focus workbench: view models, charts and widgets over `focus_core`."""
