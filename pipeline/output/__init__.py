"""What lies in an output folder, and who may write there.

`commits` and `manifest` say what is done, `runlog` what each start did; `earlier` tells whether a run may go on there,
`resume` what is left; `finish` ends it, `accounts` and `check_files` tell that nothing is missing, `lock` that nobody
else writes.
"""
