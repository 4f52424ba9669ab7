"""Runs every trainer of a folder that generate.py wrote with plain python, without any validator: selfcheck.py DIR [NAME ...]"""
import sys, json, re, subprocess, time, os, csv, yaml, resource, math
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
root = Path(sys.argv[1]); only = sys.argv[2:]
labels = {l['name']: l for l in json.loads((root/'labels.json').read_text())}
def one(name):
    l = labels[name]; d = root/name
    book = yaml.safe_load((d/'runbook.yaml').read_text())
    ph = book['phases'][0]; t = book['trainer']
    cmd = [str(x).replace('{steps}', str(ph['steps'])).replace('{out}', 'out') for x in t['command']]
    for k, v in (t.get('args') or {}).items(): cmd += [f'--{k}', str(v).replace('{steps}', str(ph['steps'])).replace('{out}', 'out')]
    env = dict(os.environ, PYTHONUNBUFFERED='1')
    procs = []; t0 = time.time()
    np_ = book['defaults']['nproc']
    for rk in range(max(1, np_)):
        e = dict(env, RANK=str(rk), WORLD_SIZE=str(np_)) if np_ else env
        procs.append(subprocess.Popen([sys.executable, *cmd], cwd=d, env=e, stdout=open(d/f'o{rk}','w'), stderr=open(d/f'e{rk}','w')))
    rcs = []
    for p in procs:
        try:
            pid, st, ru = os.wait4(p.pid, os.WNOHANG)
            while not pid:
                time.sleep(0.1); pid, st, ru = os.wait4(p.pid, os.WNOHANG)
                if time.time()-t0 > 30: p.kill()
            rcs.append(os.waitstatus_to_exitcode(st)); cpu = ru.ru_utime+ru.ru_stime
        except ChildProcessError: rcs.append('?')
    el = time.time()-t0
    m = t['metrics']; info = ''
    if 'stdout' in m:
        pat = re.compile(m['stdout'])
        rows = []
        for f in ('o0','e0'):
            rows = [x.groupdict() for x in (pat.search(re.sub(r'\x1b\[[0-9;]*m','',ln)) for ln in (d/f).read_text().split('\n')) if x]
            if rows: break
        info = f'{len(rows)} matches; {rows[len(rows)//2] if rows else None}'
    else:
        f = d/'out'/m['csv']
        if f.exists():
            x = f.read_text().splitlines(); info = f'{len(x)-1} rows; {x[len(x)//2]}'
    rates = []
    err = (d/'e0').read_text()[-200:].replace('\n',' / ') if any(rcs) else ''
    return f"{name:26} rc={rcs} {el:5.1f}s cpu {cpu:4.2f} planned {l['seconds']} {info[:190]} {err}"
names = [n for n in labels if not only or any(n.startswith(o) for o in only)]
with ThreadPoolExecutor(10) as ex:
    for line in ex.map(one, names): print(line, flush=True)
