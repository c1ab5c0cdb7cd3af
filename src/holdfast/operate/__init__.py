"""Operations on jobs for handles and control: change, find, report."""
