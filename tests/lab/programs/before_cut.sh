# Makes, below /etc/cut, what the runs of tests/lab/test_power_cuts.py change.
mkdir -p /etc/cut/folder/x
cd /etc/cut
yes old | head -500 > replaced; chmod 4711 replaced; chown nvidia replaced
head -c 3000000 /dev/zero | tr '\0' o > big
echo once > removed; echo deep > folder/x/y; ln -s x/y folder/link
echo one > list; echo '{"a": 1}' > keys.json
sync -f .
