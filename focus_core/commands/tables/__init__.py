"""Results as tables for the terminal, one module per kind."""

from focus_core.commands.tables.evaluation import evaluation_table, leak_lines, length_table
from focus_core.commands.tables.plain import plain_table

__all__ = ["evaluation_table", "leak_lines", "length_table", "plain_table"]
