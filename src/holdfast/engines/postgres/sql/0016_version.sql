-- How far the schema is. The last file of a release says so; roles without rights on tables can ask.

CREATE FUNCTION version_1() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
    SELECT max(number) FROM migration
$$;

-- Nobody but the owner, and whoever the owner grants it to.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;
