"""What few users need, behind the doors of the core: entries of its tables name these modules, which load when used."""
