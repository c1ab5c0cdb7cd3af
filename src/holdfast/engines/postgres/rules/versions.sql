-- For `open` and `migrate`: which tables and rules are installed, and which versions of the rules are dropped.
--
-- `migrate` calls the last two functions as the owner of the schema; they have no rights of their own.

-- The number of the newest tables, and the checksum of this version of the rules. A role without rights on tables may
-- call it.
CREATE FUNCTION installed(OUT p_tables integer, OUT p_checksum text) LANGUAGE sql STABLE {{entry}} AS $$
    SELECT (SELECT max(number) FROM migration), (SELECT checksum FROM rules WHERE version = {{rules_version}})
$$;

-- Give this version the grants of the version before it: on the schema, and on each function of the same name. A role
-- that may call all functions of the version before may call all functions of this one, new ones too.
CREATE FUNCTION adopt_grants() RETURNS void LANGUAGE plpgsql SET search_path = {{namespace}}, pg_temp AS $$
DECLARE
    v_before regnamespace := to_regnamespace(
        '{{namespace}}_rules_' || (SELECT max(version) FROM rules WHERE version < {{rules_version}}));
    v record;
BEGIN
    FOR v IN
        SELECT a.grantee::regrole AS role FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
        WHERE n.oid = v_before AND a.privilege_type = 'USAGE' AND a.grantee NOT IN (0, n.nspowner)
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA {{rules}} TO %s', v.role);
    END LOOP;
    FOR v IN
        WITH granted AS (
            SELECT o.proname, a.grantee FROM pg_proc AS o, aclexplode(o.proacl) AS a
            WHERE o.pronamespace = v_before AND o.prosecdef AND a.privilege_type = 'EXECUTE'
                AND a.grantee NOT IN (0, o.proowner)
        ), granted_all AS (
            SELECT grantee FROM granted GROUP BY grantee
            HAVING count(*) = (SELECT count(*) FROM pg_proc WHERE pronamespace = v_before AND prosecdef)
        )
        SELECT p.proname AS name, g.grantee::regrole AS role FROM pg_proc AS p JOIN granted AS g USING (proname)
        WHERE p.pronamespace = '{{rules}}'::regnamespace AND p.prosecdef
        UNION
        SELECT p.proname, g.grantee::regrole FROM pg_proc AS p CROSS JOIN granted_all AS g
        WHERE p.pronamespace = '{{rules}}'::regnamespace AND p.prosecdef
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION {{rules}}.%I TO %s', v.name, v.role);
    END LOOP;
END $$;

-- Drop the versions that are neither this one nor among the newest, unless a live worker calls them. One line per
-- version.
CREATE FUNCTION drop_old_versions() RETURNS SETOF text LANGUAGE plpgsql SET search_path = {{namespace}}, pg_temp AS $$
DECLARE
    c_now CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    v_version integer;
    v_workers text;
    v_count bigint;
BEGIN
    FOR v_version IN
        SELECT version FROM rules
        WHERE version <> {{rules_version}}
            AND version NOT IN (SELECT version FROM rules ORDER BY version DESC LIMIT {{kept_versions}})
        ORDER BY version
    LOOP
        SELECT string_agg(worker, ', ' ORDER BY worker), count(*) INTO v_workers, v_count FROM worker
        WHERE rules_version = v_version AND c_now - seen <= greatest(
            {{live_for_intervals}} * coalesce((record ->> 'interval')::bigint, 0), {{live_at_least}});
        IF v_count > 0 THEN
            RETURN NEXT format('rules %s kept: worker%s %s use%s it', v_version, CASE WHEN v_count > 1 THEN 's' END,
                v_workers, CASE WHEN v_count = 1 THEN 's' END);
        ELSE
            EXECUTE format('DROP SCHEMA IF EXISTS %I CASCADE', '{{namespace}}_rules_' || v_version);
            DELETE FROM rules WHERE version = v_version;
            RETURN NEXT format('rules %s dropped', v_version);
        END IF;
    END LOOP;
END $$;
