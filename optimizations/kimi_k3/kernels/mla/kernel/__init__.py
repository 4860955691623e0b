"""Device code of an MLA layer, in the order of a step: query, core, value."""
