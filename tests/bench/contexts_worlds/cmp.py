import json,sys
from collections import defaultdict
import numpy as np
base=defaultdict(dict)
for l in open('base.jsonl'):
    d=json.loads(l); base[tuple(d['id'][1:])][d['id'][0]]=d['runs']
def table(path, show=True):
    rs=[];
    for l in open(path):
        d=json.loads(l); k=tuple(d['id'][1:]); b=base.get(k,{})
        if len(b)<3: continue
        best=min(np.mean(v) for v in b.values()); m=np.mean(d['runs']); se=np.std(d['runs'],ddof=1)/len(d['runs'])**.5
        rs.append((m/best,k,m,se,{x:round(float(np.mean(v)),1) for x,v in b.items()}))
    if show:
        for r,k,m,se,b in rs: print(f"{k[0]:9}{k[1]:9}K{k[2]:<3}e{k[3]:5}{k[4]:7}{k[5]:<8} {m:6.1f}±{se:4.1f} ratio {r:5.2f} {'***' if r>1.35 else '  *' if r>1.15 else '   '} {b}")
    x=np.array([r[0] for r in rs]); print(path,len(x),'geomean',round(float(np.exp(np.log(x).mean())),3),'max',round(float(x.max()),2))
if __name__=='__main__':
    for p in sys.argv[1:]: table(p, True)
