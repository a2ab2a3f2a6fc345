. engines.sh
engines -a
[ -n "$names" ] || exit 0
docker container inspect -f '{{.Image}}' $names | sort -u |
  xargs docker image inspect
