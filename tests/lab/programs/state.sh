# Prints what a node is like: what check mode must not change.
find /etc /srv /home /root /opt -xdev -printf '%p %y %m %u %g %s %l\n' | sort
find /etc /srv /home /root -xdev -type f -print0 | sort -z | xargs -0 sha256sum
dpkg-query -W -f '${Package} ${Version} ${Status}\n'
getent passwd; getent group
ip -br addr show scope global
systemctl list-unit-files --no-legend
command -v docker
