-- What the invalidator needs beside its own schema: to read the binlog, and to see how far replication is.
-- MySQL takes the part that only MariaDB knows for a comment.
GRANT REPLICATION SLAVE, REPLICATION CLIENT /*M!100502 , SLAVE MONITOR */ ON *.* TO 'app'@'%';
