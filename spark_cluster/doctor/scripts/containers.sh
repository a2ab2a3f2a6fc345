. engines.sh
engines -a
[ -n "$names" ] || { echo '[]'; exit 0; }
docker container inspect $names
