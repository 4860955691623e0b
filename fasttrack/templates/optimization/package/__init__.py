"""@NAME@: a specialised decode path, off unless switched on. Importing it changes nothing."""
