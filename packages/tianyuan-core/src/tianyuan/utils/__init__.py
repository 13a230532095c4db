"""Hold the small tools that modules and users share."""
