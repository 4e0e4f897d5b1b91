"""What Focus knows of a Transformers decoder: its attention modules, hooks on them, and the functions it registers."""
