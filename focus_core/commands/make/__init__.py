"""Commands that fetch, train, write, serve and open the workbench."""
