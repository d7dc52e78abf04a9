# filled in when there is something to install
