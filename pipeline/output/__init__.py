"""What lies in an output folder, and which run may write there.

`commits` and `manifest` record what is done, `run_log` what each run did. `find` compares that with the input and says
what is left; `finish` checks that nothing is missing and ends a run; `integrity` compares files with their records;
`lock` admits one writer.
"""
