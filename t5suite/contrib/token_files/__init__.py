"""`t5suite corpus adopt`: token files of datatrove and Megatron as a corpus."""
