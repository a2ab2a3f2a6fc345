print('repaired')
