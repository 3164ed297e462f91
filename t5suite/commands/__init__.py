"""The sub-commands of `t5suite`: each has a function that adds its flags and one that runs it."""
